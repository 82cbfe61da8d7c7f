"""The command line of driftlab: one file a command, each parses, calls the library and reports."""
