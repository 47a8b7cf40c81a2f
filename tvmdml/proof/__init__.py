"""What shows that tvmdml does as it should: how fast (``bench``), how right (``conformance``), and what is broken (``doctor``)."""
