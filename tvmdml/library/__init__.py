"""What there is before anything is compiled: packs in use, recorded operations, tuning logs; and where a kernel is found."""
