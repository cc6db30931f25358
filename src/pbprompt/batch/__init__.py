"""Answers on any number of images: streamed in, written in parts, gone on with after whatever ends it.

stream ──▶ units ──▶ features ──▶ answers ──▶ parts on the disk ──▶ one file
           data/     features/    model/      one by one, each     or a folder of parts
                                              whole, and listed
"""
