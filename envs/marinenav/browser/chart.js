"use strict";
/* Draws a sea from above, north up, on a canvas: the picture of render.py, with moving water. */

const COLOURS = {
  deep: "#102a43", shallow: "#245474", light: "#2c6487", foam: "190, 226, 242", core: "#b2d8e8",
  buoy: "#f06e3c", cream: "#ffebdc", alarm: "255, 72, 88", wreck: "#8494a2", ink: "#0c1c2c",
  robots: ["255, 209, 102", "6, 214, 160", "239, 134, 190", "122, 196, 255", "190, 160, 255",
    "255, 160, 110", "180, 230, 110", "240, 240, 240"],
};
const MARGIN = 3; // m of sea around the map
const FLECKS = 420; // of foam, which show the current
const FLECK_SECONDS = 2.5;

const colourOf = (number, opacity = 1) =>
  `rgba(${COLOURS.robots[number % COLOURS.robots.length]}, ${opacity})`;

class Chart {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.flecks = Array.from({ length: FLECKS }, () => ({ age: Infinity }));
  }

  /** Position on the map, m, of a pointer event. */
  place(event) {
    const box = this.canvas.getBoundingClientRect();
    const metres = (SETTINGS.mapSize + 2 * MARGIN) / box.width;
    return [SETTINGS.mapSize + MARGIN - (event.clientY - box.top) * metres,
      (event.clientX - box.left) * metres - MARGIN];
  }

  /** @param poses x, y and heading of each vessel; @param chosen number of the chosen vessel
   *  @param seconds time on the sea since the last picture, by which the flecks of foam drift */
  draw(voyage, poses, chosen, seconds) {
    const { pen, canvas } = this;
    const width = Math.round(canvas.clientWidth * (window.devicePixelRatio || 1)) || 720;
    if (canvas.width !== width) canvas.width = canvas.height = width;
    this.scale = width / (SETTINGS.mapSize + 2 * MARGIN);
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.lineCap = pen.lineJoin = "round";
    this.drawWater(width);
    const { sea, trails } = voyage;
    this.drawCurrent(sea.vortices, seconds);
    sea.obstacles.forEach((buoy) => this.drawBuoy(buoy));
    sea.vessels.forEach((vessel, i) => this.drawGoal(vessel, i, poses[i]));
    trails.forEach((trail, i) => this.drawTrail([...trail.slice(0, -1), poses[i]], i));
    if (sea.vessels[chosen] && sea.vessels[chosen].active) this.drawSenses(sea, poses, chosen);
    sea.vessels.forEach((vessel, i) => {
      const phi = giveWayAngle(sea.views[i]);
      if (vessel.active && phi > 0) this.drawDuty(vessel, poses[i], phi);
    });
    sea.vessels.forEach((vessel, i) => this.drawHull(vessel, i, poses[i], i === chosen));
    this.drawScale();
  }

  drawWater(width) {
    const { pen, scale } = this;
    const side = SETTINGS.mapSize * scale;
    const start = MARGIN * scale;
    pen.fillStyle = COLOURS.deep;
    pen.fillRect(0, 0, width, width);
    const water = pen.createRadialGradient(0.42 * width, 0.38 * width, 0, 0.5 * width, 0.5 * width,
      0.75 * width);
    water.addColorStop(0, COLOURS.light);
    water.addColorStop(1, "#1d4866");
    pen.fillStyle = water;
    pen.beginPath();
    pen.roundRect(start, start, side, side, 1.2 * scale);
    pen.fill();
    pen.strokeStyle = "rgba(255, 255, 255, 0.045)";
    pen.lineWidth = Math.max(1, 0.06 * scale);
    pen.beginPath();
    for (let metres = 5; metres < SETTINGS.mapSize; metres += 5) {
      const at = start + metres * scale;
      pen.moveTo(at, start);
      pen.lineTo(at, start + side);
      pen.moveTo(start, at);
      pen.lineTo(start + side, at);
    }
    pen.stroke();
  }

  /** Let flecks of foam drift with the current; draw them, and the eyes of the vortices. */
  drawCurrent(vortices, seconds) {
    if (vortices.length === 0) return;
    for (const fleck of this.flecks) {
      fleck.age += seconds;
      if (!(fleck.age < FLECK_SECONDS)) {
        const isFirst = fleck.age === Infinity;
        fleck.at = [Math.random() * SETTINGS.mapSize, Math.random() * SETTINGS.mapSize];
        fleck.age = isFirst ? Math.random() * FLECK_SECONDS : 0;
      }
      const [x, y] = fleck.at;
      const [u, v] = current(x, y, vortices);
      const speed = Math.hypot(u, v);
      fleck.at = [x + u * seconds, y + v * seconds];
      if (speed < 0.03 || [x, y].some((value) => value < 0 || value > SETTINGS.mapSize)) continue;
      const fade = Math.sin((Math.PI * fleck.age) / FLECK_SECONDS);
      const length = Math.min(2.6, 0.5 + 1.5 * speed) / speed;
      this.line([[x - u * length / 2, y - v * length / 2], [x + u * length / 2, y + v * length / 2]],
        `rgba(${COLOURS.foam}, ${fade * Math.min(0.6, 0.14 + 0.5 * speed)})`, 0.11);
    }
    vortices.forEach((vortex) => {
      const turn = Math.sign(vortex.circulation);
      this.circle(vortex.x, vortex.y, vortex.core, COLOURS.core);
      [1.15, 1.75, 2.4].forEach((radius, ring) => [0, 1, 2].forEach((arm) => {
        this.arc(vortex.x, vortex.y, radius, turn * (arm * TAU / 3 + 0.9 * ring), turn * 1.5,
          `rgba(${COLOURS.foam}, ${0.75 - 0.2 * ring})`, 0.2);
      }));
    });
  }

  drawBuoy({ x, y, radius }) {
    this.circle(x, y, 1.55 * radius, "rgba(240, 110, 60, 0.16)");
    this.circle(x, y, radius, COLOURS.buoy, COLOURS.cream, 0.16);
    this.circle(x, y, 0.36 * radius, COLOURS.cream);
  }

  drawGoal({ goal: [x, y], active, reached }, number, pose) {
    if (active) {
      this.pen.setLineDash([0.3 * this.scale, 0.9 * this.scale]);
      this.line([pose, [x, y]], colourOf(number, 0.28), 0.12);
      this.pen.setLineDash([]);
    }
    this.circle(x, y, SETTINGS.goalRadius, colourOf(number, reached ? 0.4 : 0.14),
      colourOf(number, 0.9), 0.18);
    this.circle(x, y, 0.4, colourOf(number));
  }

  /** Past positions, which fade with their age. */
  drawTrail(trail, number) {
    this.pen.lineCap = "butt";
    for (let i = 1; i < trail.length; i++) {
      const fade = 0.12 + 0.7 * (i / trail.length) ** 1.5;
      this.line([trail[i - 1], trail[i]], colourOf(number, fade), 0.3);
    }
    this.pen.lineCap = "round";
  }

  /** Range of the chosen vessel, and lines to the objects that its policy sees. */
  drawSenses(sea, poses, chosen) {
    const [x, y] = poses[chosen];
    this.circle(x, y, SETTINGS.sensingRange, colourOf(chosen, 0.05), colourOf(chosen, 0.35), 0.08);
    for (const object of sea.views[chosen].seen) {
      this.line([[x, y], [x + object.dx, y + object.dy]], colourOf(chosen, 0.55), 0.1);
    }
  }

  /** Turn to starboard that the collision regulations ask for. */
  drawDuty(vessel, [x, y], phi) {
    const course = Math.atan2(vessel.ground[1], vessel.ground[0]);
    const { pen } = this;
    const at = this.pixel(x, y);
    pen.beginPath();
    pen.moveTo(...at);
    pen.arc(...at, 7 * this.scale, course - TAU / 4, course - TAU / 4 + phi);
    pen.closePath();
    pen.fillStyle = `rgba(${COLOURS.alarm}, 0.3)`;
    pen.strokeStyle = `rgba(${COLOURS.alarm}, 0.85)`;
    pen.lineWidth = 0.12 * this.scale;
    pen.fill();
    pen.stroke();
  }

  drawHull({ active, reached }, number, [x, y, heading], isChosen) {
    const { pen, scale } = this;
    const [half, beam] = [SETTINGS.vesselLength / 2, SETTINGS.vesselWidth / 2];
    pen.save();
    pen.translate(...this.pixel(x, y));
    pen.rotate(heading); // clockwise from north, as the canvas turns
    pen.scale(scale, -scale); // y of the pen ahead, x to starboard
    pen.beginPath();
    pen.moveTo(0, half);
    pen.bezierCurveTo(0.62 * beam, 0.72 * half, beam, 0.35 * half, beam, -0.1 * half);
    pen.lineTo(0.82 * beam, -half);
    pen.lineTo(-0.82 * beam, -half);
    pen.lineTo(-beam, -0.1 * half);
    pen.bezierCurveTo(-beam, 0.35 * half, -0.62 * beam, 0.72 * half, 0, half);
    pen.closePath();
    pen.globalAlpha = reached ? 0.75 : 1;
    pen.fillStyle = active || reached ? colourOf(number) : COLOURS.wreck;
    pen.shadowColor = "rgba(0, 0, 0, 0.45)";
    pen.shadowBlur = 0.8 * scale;
    pen.fill();
    pen.shadowBlur = 0;
    pen.strokeStyle = isChosen ? "#ffffff" : COLOURS.ink;
    pen.lineWidth = isChosen ? 0.26 : 0.16;
    pen.stroke();
    pen.fillStyle = COLOURS.ink;
    pen.beginPath();
    pen.roundRect(-0.42 * beam, -0.55 * half, 0.84 * beam, 0.72 * half, 0.25);
    pen.fill();
    pen.restore();
    pen.globalAlpha = 1;
    if (!active && !reached) {
      this.circle(x, y, 3.4, `rgba(${COLOURS.alarm}, 0.1)`, `rgba(${COLOURS.alarm}, 0.7)`, 0.14);
    }
    pen.fillStyle = colourOf(number);
    pen.font = `600 ${Math.max(11, 1.25 * scale)}px system-ui, "DejaVu Sans", sans-serif`;
    const [left, top] = this.pixel(x, y);
    pen.fillText(String(number + 1), left + 2.6 * scale, top - 2 * scale);
  }

  drawScale() {
    const { pen, scale } = this;
    const [left, top] = this.pixel(-2, SETTINGS.mapSize - 10.2);
    pen.strokeStyle = pen.fillStyle = "rgba(230, 241, 248, 0.75)";
    pen.lineWidth = Math.max(1.5, 0.12 * scale);
    pen.beginPath();
    pen.moveTo(left, top - 0.5 * scale);
    pen.lineTo(left, top);
    pen.lineTo(left + 10 * scale, top);
    pen.lineTo(left + 10 * scale, top - 0.5 * scale);
    pen.stroke();
    pen.font = `${Math.max(11, 1.15 * scale)}px system-ui, "DejaVu Sans", sans-serif`;
    pen.fillText("10 m", left + 3.8 * scale, top - 0.6 * scale);
  }

  circle(x, y, radius, fill, outline, width) {
    const { pen } = this;
    pen.beginPath();
    pen.arc(...this.pixel(x, y), radius * this.scale, 0, TAU);
    pen.fillStyle = fill;
    pen.fill();
    if (!outline) return;
    pen.strokeStyle = outline;
    pen.lineWidth = width * this.scale;
    pen.stroke();
  }

  arc(x, y, radius, start, turn, colour, width) {
    const { pen } = this;
    pen.beginPath();
    pen.arc(...this.pixel(x, y), radius * this.scale, start, start + turn, turn < 0);
    pen.strokeStyle = colour;
    pen.lineWidth = width * this.scale;
    pen.stroke();
  }

  line(points, colour, width) {
    const { pen } = this;
    pen.beginPath();
    points.forEach(([x, y], i) => (i ? pen.lineTo(...this.pixel(x, y)) : pen.moveTo(...this.pixel(x, y))));
    pen.strokeStyle = colour;
    pen.lineWidth = width * this.scale;
    pen.stroke();
  }

  /** Pixel of a position; x points up, y to the right. */
  pixel(x, y) {
    return [this.scale * (y + MARGIN), this.scale * (SETTINGS.mapSize + MARGIN - x)];
  }
}
