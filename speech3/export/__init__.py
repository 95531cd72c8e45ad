"""Networks as ONNX graphs, built by hand from their modules, and their use with onnxruntime.

`onnx` exports a model, `onnx_runtime` scores features with the file; `speech3.decoding.export` adds the rest of a
recogniser.
"""
