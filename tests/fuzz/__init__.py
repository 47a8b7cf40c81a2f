"""Fuzzing of everything that takes data from outside.

Each module of ``aims`` is one thing to aim at, with a function ``one(choices)``: it makes an input of ``Choices``, which are read
from bytes, hands it to the library, and raises where neither a right result nor a refusal comes of it. So every example is a
string of bytes, whoever made it: atheris, guided by what code an example reaches, where it is installed (``pip install atheris``);
else a random generator, from scratch and by changing examples that are there.

    cd tests
    python -m fuzz --minutes 5            what a nightly job would call: all aims, in turn; exit code 1 if anything was found
    python -m fuzz --only models,packs    only these
    python -m fuzz --replay FOLDER        run the findings of a folder again, and say which are still there
    python -m fuzz --help                 the other options: seed, jobs, folders, limits

Examples run in processes of their own, with a limit of memory and of time: a crash, a hang or a huge allocation costs that process
and is a finding, too. What is learnt is kept in a folder (``--corpus``), from which the next run goes on; a finding is two files in
another (``--findings``): the bytes, and what became of them. ``tests/faults/test_fuzz.py`` runs some examples of each aim, the same
ones every time, and all of ``regressions``: inputs that once failed, as the files that they are, in a folder by the name of
their aim.

To add an aim, put a module into ``aims``: it is found by its file. It has ``one``, and may have ``seeds()``, where to begin;
``check(content)``, which takes the bytes of a regression's file; and ``WORDS``, which its inputs are likely to have. ``EXAMPLES``
says how many of it the tests run.
"""
