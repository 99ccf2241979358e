//! Training data on the host: formats, decoding, augmentation, order and read-ahead. Nothing here needs libtorch.
