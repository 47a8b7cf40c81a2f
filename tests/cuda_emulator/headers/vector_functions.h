// vector_types.h has them.
