"""Models of Llama's shape on CUDA: passes of few rows as one graph, over a paged cache.

Through torch a pass of few rows costs what its hundreds of launches cost. Here it is products and a
handful of kernels written in Triton; once a size was met its passes are captured and launched at
once. Every row has the bits it has alone: products run with a fixed number of rows, the kernels
compute each row by itself. Where Triton, a C compiler for it or a device of compute capability 8.0
is missing, and for other models, torch does the same, more slowly.

Tokens are drawn by kernels as well, whatever model the logits are of; so passes can follow each
other on the device, where nothing has to lie between them.

`keys` lays a batch out, `attention`, `rowwise`, `products` and `experts` compute, `draw` draws,
`rolling` moves rows on, `graphs` captures, `layer` and `model` put them together; `device` says
what kernels need, `probe` tries them before they are used, and holds the attention against
`reference`.
"""
