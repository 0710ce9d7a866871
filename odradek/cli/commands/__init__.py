"""The commands, with one module for each group. The function `register` of a module adds the group's parsers."""
