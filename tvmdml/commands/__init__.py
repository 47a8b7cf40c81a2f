"""The commands of ``tvmdml`` that belong to no other room, and what checks a machine: ``tvmdml doctor``."""
