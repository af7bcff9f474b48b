"""Volumes in files: HDF5, Zarr, NIfTI and mapped `.npy`, read by slab.

layout.py        where samples are: splits, keys, one array of all or one file each
source.py        samples by id and slab, and the bytes that were asked for
npy.py ...       what each format takes to open an array and to read a part of it
"""
