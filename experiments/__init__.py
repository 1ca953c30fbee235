"""The experiments of the paper, by name: protocols as data, resumable runs, tables and figures beside the paper's."""
