"""From arguments to checked settings: arguments, help, settings, automatic sizes."""
