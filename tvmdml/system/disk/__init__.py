"""Files that processes share: stores of kernels, locks, and which files to trust."""
