"""Raw tables: their schema, the files they lie in, and their values, read chunk by chunk."""
