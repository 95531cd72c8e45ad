from speech3.cli import main

main()
