"""`mcptasks demo`: the tour. `command` sets the stage and clears it, `scenes` are what is shown, `screen` how."""
