"""Raw tables: their schema, the files they lie in, and their cells, read chunk by chunk."""
