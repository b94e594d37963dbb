// A picture and a number for each of its patches, drawn as the light that falls on it.
"use strict";
const Patches = (() => {
  const { stops, shade } = Page;

  // The image at an address that the page itself carries, as soon as it is there
  const loaded = new Map();
  function load(address, then) {
    if (!loaded.has(address)) {
      const image = new Image();
      loaded.set(address, image);
      image.setAttribute("src", address);
    }
    const image = loaded.get(address);
    if (image.complete) then(image);
    else image.addEventListener("load", () => then(image), { once: true });
  }

  // share: of a patch, 0 (dark) to 1 (bright), or to -1 (bright and cold); null draws the picture as it is. chosen: the patch to frame, or -1
  function paint(context, image, share, rows, columns, cell, chosen) {
    const [w, h] = [image.naturalWidth / columns, image.naturalHeight / rows];
    const [glow, cold] = [stops("--glow"), share && stops("--cold")];
    context.imageSmoothingEnabled = false;
    context.fillStyle = "#000000";
    context.fillRect(0, 0, columns * cell, rows * cell);
    for (let patch = 0; patch < rows * columns; patch++) {
      const [y, x] = [Math.floor(patch / columns), patch % columns];
      const part = share === null ? 1 : Math.min(Math.max(share(patch) || 0, -1), 1);
      const size = Math.abs(part);
      context.globalCompositeOperation = "source-over";
      context.globalAlpha = share === null ? 1 : 0.2 + 0.3 * size;
      context.drawImage(image, x * w, y * h, w, h, x * cell, y * cell, cell, cell);
      if (share === null) continue;
      context.globalCompositeOperation = "lighter";
      context.globalAlpha = 0.58;
      context.fillStyle = `rgb(${shade(part < 0 ? cold : glow, size).join(",")})`;
      context.fillRect(x * cell, y * cell, cell, cell);
    }
    context.globalCompositeOperation = "source-over";
    context.globalAlpha = 0.25;
    context.strokeStyle = "#ffffff";
    context.lineWidth = 1;
    context.beginPath();
    for (let y = 1; y < rows; y++) { context.moveTo(0, y * cell + 0.5); context.lineTo(columns * cell, y * cell + 0.5); }
    for (let x = 1; x < columns; x++) { context.moveTo(x * cell + 0.5, 0); context.lineTo(x * cell + 0.5, rows * cell); }
    context.stroke();
    context.globalAlpha = 1;
    if (chosen >= 0) {
      context.strokeStyle = "#40dcff";
      context.lineWidth = 2;
      context.strokeRect((chosen % columns) * cell + 1, Math.floor(chosen / columns) * cell + 1, cell - 2, cell - 2);
    }
  }

  return { load, paint };
})();
