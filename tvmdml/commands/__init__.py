"""The commands of ``tvmdml`` that belong to no other room."""
