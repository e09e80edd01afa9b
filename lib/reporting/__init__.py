"""Pages, tables and figures of the book; `lib.report` puts them together."""
