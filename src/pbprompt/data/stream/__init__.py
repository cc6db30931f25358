"""Images one after another, from ten to ten million: folders, tables, Parquet, tars, here or elsewhere.

    stream = Stream(["photos/", "more.csv", "s3://bucket/shards/*.tar"], allow_urls=True)
    for unit in stream.units():            # in a fixed order; nothing is held but the unit at hand
        for record in unit.records():      # record.name, record.label, record.split
            record.read()                  # the bytes of its image file; InputError where they cannot be had

A `Unit` is some images that lie together: a thousand files, some row groups of a Parquet file, a tar. It can
be pickled, so that another process or machine reads it; `records(skip=n)` goes on after the first n;
`identity` is another text once what it names has changed; `count()` says how many records it has, None where
only reading it would tell.

What is wrong with one image is its own record's error, raised by `read`; what is wrong with the source is
raised at once. Labels are the class folder's name, the table's or Parquet column (with the names that a
Hugging Face dataset gives its numbers), or the tar's `.cls`; "" where there is none.
"""

from pbprompt.data.stream.records import Files, Record, Unit
from pbprompt.data.stream.streams import Stream

__all__ = ["Files", "Record", "Stream", "Unit"]
