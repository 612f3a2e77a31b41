"""What only makes training faster: CUDA graphs, replayed CPU steps, kernels for convolutions.

Graphs and replays never change a result; convolution kernels and compiled steps change it by rounding only.
"""
