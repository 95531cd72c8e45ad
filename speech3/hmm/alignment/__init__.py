"""When each word and phone was spoken: forced alignment, long recordings, times, confidences, probable errors.

`align` aligns a data set with an HMM, `longform` cuts a long recording with the help of its transcript, `times`
converts frames to seconds, `confidence` and `suspicious` find words and utterances that were probably mistranscribed.
"""
