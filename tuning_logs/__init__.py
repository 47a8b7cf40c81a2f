"""The winners that are shipped: one folder a machine, one file an operator. ``tvmdml.tuning.logs`` reads them."""
