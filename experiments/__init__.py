"""The paper's experiments by name: protocols as data, resumable runs, and a report that compares with the paper."""
