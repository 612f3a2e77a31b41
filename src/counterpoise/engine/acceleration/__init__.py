"""What only makes training faster: CUDA graphs, scripted CPU steps, kernels for convolutions.

Graphs and scripted steps never change a result; convolution kernels and compiled steps change it by rounding only.
"""
