"""Tables: frames, arrays, files and datasets on disk as one type of rows with columns, and the checks they pass."""
