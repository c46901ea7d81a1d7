"""The console in a real browser: Debian's Chromium, driven by Playwright, with axe-core (npm, see package.json)."""
