"""One walker and one record a language: a loop nest becomes C, Fortran or CUDA text."""
