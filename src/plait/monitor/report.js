const tip = document.getElementById("tip");
document.addEventListener("pointermove", (event) => {
  const told = event.target.closest("[data-tip]");
  tip.hidden = !told;
  if (!told) return;
  tip.textContent = told.dataset.tip;
  const x = Math.min(event.clientX + 16, innerWidth - tip.offsetWidth - 8);
  const above = event.clientY + 18 + tip.offsetHeight > innerHeight;
  tip.style.left = `${Math.max(8, x)}px`;
  tip.style.top = `${above ? event.clientY - tip.offsetHeight - 12 : event.clientY + 18}px`;
});
document.addEventListener("pointerleave", () => { tip.hidden = true; });
