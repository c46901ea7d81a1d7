"""What people see of a task while it goes on and afterwards."""
