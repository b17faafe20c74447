"""What every package may use: errors, ids, sockets, deadlines, admission. Imports nothing else of Headrace."""
