"""What the tracker stores: the only part of it that knows Redis, through `mcptasks.store`'s connection and scripts."""
