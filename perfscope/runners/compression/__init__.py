"""Codecs that gradients go through on their way between ranks.

casts      half precision: fp16, bf16
gathering  what the codecs with an all_gather share: one packed message per rank, error feedback
int8       8 bits and a scale per block
onebit     1 bit and two values per block
sparse     top-k and MSTopK: a fixed share of the elements
powersgd   low-rank factors
registry   all of them, by name
"""
