#!/bin/sh
# Two CNNs in five frameworks on 1 and 2 processes: same weights, same samples, float32. What is not installed is
# left out with the reason; `perfscope bench env create jax` (tensorflow, keras, mxnet ...) makes a pinned
# environment. Interrupted, the same command goes on. Some minutes on two cores.
set -eu
perfscope bench frameworks \
    --models lenet,smallcnn \
    --frameworks torch,tensorflow,keras-tensorflow,jax,mxnet \
    --ranks 1,2 --steps 60 --batch 32 \
    -o perfscope-studies/frameworks "$@"
perfscope compare perfscope-studies/frameworks -o perfscope-studies/frameworks/compare
