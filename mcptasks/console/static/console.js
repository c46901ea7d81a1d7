// Says whether the page is live. Everything else works without scripts.
(() => {
  const sign = document.getElementById("sign");
  if (!sign) return;
  const say = (state, text) => {
    if (sign.dataset.state === state) return;
    sign.dataset.state = state;
    sign.textContent = text;
  };
  document.addEventListener("htmx:sse:after:message", () => say("live", "Live"));
  document.addEventListener("htmx:sse:error", () => say("lost", "Not live, trying again"));
  document.addEventListener("htmx:sse:close", () => say("lost", "Not live, reload the page"));
  document.addEventListener("htmx:error", () => say("lost", "Not live, reload the page"));
  setTimeout(() => sign.dataset.state || say("lost", "Not live, reload the page"), 15000);
  addEventListener("offline", () => say("lost", "Not live, no network"));
})();
