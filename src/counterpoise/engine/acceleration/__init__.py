"""What only makes training faster and never changes a result: CUDA graphs, replayed CPU steps, kernels for convolutions."""
