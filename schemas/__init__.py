"""The JSON Schemas, and the programs that write them and the reference pages of the manual."""
