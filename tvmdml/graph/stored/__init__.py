"""Plans as they are stored: one form for the cache, for files and for packs, and one reader, which trusts nothing.

``written`` has the form: JSON, with the arrays beside it (``array_forms``), and with the constants and packed weights of a plan. In
the cache (``cache``, ``cached_plan``) it has what schedules answered, in parts that grow. In a file (``saving``) and a pack
(``loading``) it has the descriptor of each launch (``saved_plan``), so that anybody's launches are checked against the schedules.
Of sizes that are open a pack has the ``answers``, too, and ``open_saved`` fills sizes in.
"""
