"use strict";
/* Runs the graph of an exported policy. A tensor is {shape, data}; integers and flags are numbers.
 * Operators: https://onnx.ai/onnx/operators. */

const Network = (() => {
  const size = (shape) => shape.reduce((product, length) => product * length, 1);
  const tensor = (shape, data) => ({ shape, data: data || new Float32Array(size(shape)) });
  const axisOf = (axis, rank) => (axis < 0 ? axis + rank : axis);

  /** Steps in memory of a tensor along the dimensions of a larger shape that it repeats in. */
  function strides(shape, wide) {
    const steps = new Array(wide.length).fill(0);
    let step = 1;
    for (let k = 1; k <= shape.length; k++) {
      const length = shape[shape.length - k];
      steps[wide.length - k] = length === 1 ? 0 : step;
      step *= length;
    }
    return steps;
  }

  /** Apply a function to the elements of tensors that repeat along dimensions of length 1. */
  function elementwise(operation, ...inputs) {
    const rank = Math.max(...inputs.map(({ shape }) => shape.length));
    const shape = Array.from({ length: rank }, (_, k) => Math.max(
      ...inputs.map((each) => each.shape[each.shape.length - rank + k] ?? 1)));
    const steps = inputs.map((each) => strides(each.shape, shape));
    const result = tensor(shape);
    const index = new Array(rank).fill(0);
    const places = inputs.map(() => 0);
    for (let n = 0; n < result.data.length; n++) {
      result.data[n] = operation(...inputs.map((each, i) => each.data[places[i]]));
      for (let k = rank - 1; k >= 0; k--) {
        index[k] += 1;
        places.forEach((_, i) => { places[i] += steps[i][k]; });
        if (index[k] < shape[k]) break;
        places.forEach((_, i) => { places[i] -= steps[i][k] * shape[k]; });
        index[k] = 0;
      }
    }
    return result;
  }

  /** Product of rows `[..., K]` and a matrix, `[K, N]` or transposed `[N, K]`. */
  function product(rows, matrix, isTransposed) {
    if (matrix.shape.length !== 2) throw new Error("a product of two batches of matrices");
    const [n, k] = isTransposed ? matrix.shape : [...matrix.shape].reverse();
    const [across, along] = isTransposed ? [k, 1] : [1, n];
    const result = tensor([...rows.shape.slice(0, -1), n]);
    for (let out = 0; out < result.data.length; out++) {
      const [start, column] = [Math.floor(out / n) * k, (out % n) * across];
      let sum = 0;
      for (let i = 0; i < k; i++) sum += rows.data[start + i] * matrix.data[column + i * along];
      result.data[out] = sum;
    }
    return result;
  }

  /** Apply a function of a list of numbers to each line along one axis; it returns a list. */
  function alongAxis(input, axis, operation) {
    const k = axisOf(axis, input.shape.length);
    const [length, inner] = [input.shape[k], size(input.shape.slice(k + 1))];
    let result;
    for (let line = 0; line < input.data.length / length; line++) {
      const start = Math.floor(line / inner) * length * inner + (line % inner);
      const found = operation(Array.from({ length }, (_, i) => input.data[start + i * inner]));
      const shape = [...input.shape.slice(0, k), found.length, ...input.shape.slice(k + 1)];
      result = result || tensor(shape);
      const first = Math.floor(line / inner) * found.length * inner + (line % inner);
      found.forEach((value, i) => { result.data[first + i * inner] = value; });
    }
    return result;
  }

  const sum = (line) => line.reduce((total, value) => total + value, 0);

  function softmax(line) {
    const highest = Math.max(...line);
    const powers = line.map((value) => Math.exp(value - highest));
    return powers.map((power) => power / sum(powers));
  }

  function reduce(operation) {
    return ([input, axes], { keepdims = 1 }) => {
      const rank = input.shape.length;
      const chosen = axes ? [...axes.data].map((axis) => axisOf(axis, rank)) : [...input.shape.keys()];
      const reduced = chosen.reduce((partial, axis) =>
        alongAxis(partial, axis, (line) => [operation(line)]), input);
      return keepdims ? reduced : without(reduced, chosen);
    };
  }

  const without = ({ shape, data }, axes) =>
    tensor(shape.filter((_, k) => !axes.includes(k)), data);

  function reshape([input, wanted]) {
    const shape = [...wanted.data];
    const free = shape.indexOf(-1);
    if (free >= 0) shape[free] = input.data.length / -size(shape);
    return tensor(shape, input.data);
  }

  function unsqueeze([input, axes]) {
    const rank = input.shape.length + axes.data.length;
    const added = [...axes.data].map((axis) => axisOf(axis, rank));
    const lengths = [...input.shape];
    const shape = Array.from({ length: rank }, (_, k) => (added.includes(k) ? 1 : lengths.shift()));
    return tensor(shape, input.data);
  }

  function concat(inputs, { axis }) {
    const k = axisOf(axis, inputs[0].shape.length);
    const blocks = inputs.map(({ shape }) => size(shape.slice(k)));
    const shape = [...inputs[0].shape];
    shape[k] = sum(inputs.map((each) => each.shape[k]));
    const result = tensor(shape);
    let place = 0;
    for (let line = 0; line < size(shape.slice(0, k)); line++) {
      inputs.forEach(({ data }, i) => {
        result.data.set(data.subarray(line * blocks[i], (line + 1) * blocks[i]), place);
        place += blocks[i];
      });
    }
    return result;
  }

  function split([input, lengths], { axis = 0, num_outputs: parts }) {
    const total = input.shape[axisOf(axis, input.shape.length)];
    const even = Math.ceil(total / parts);
    const sizes = lengths ? [...lengths.data]
      : Array.from({ length: parts }, (_, i) => Math.min(even, total - i * even));
    let start = 0;
    return sizes.map((length) => {
      const end = start + length;
      const part = alongAxis(input, axis, (line) => line.slice(end - length, end));
      start = end;
      return part;
    });
  }

  /** Rows of a table `[A, ...]` by their numbers `[..., 1]`. */
  function gatherRows([table, numbers]) {
    const row = table.shape.slice(1);
    const result = tensor([...numbers.shape.slice(0, -1), ...row]);
    numbers.data.forEach((number, i) => {
      const start = number * size(row);
      result.data.set(table.data.subarray(start, start + size(row)), i * size(row));
    });
    return result;
  }

  function gemm([rows, matrix, bias], { alpha = 1, beta = 1, transB: isTransposed = 0 }) {
    const scaled = product(rows, matrix, isTransposed);
    return bias ? elementwise((a, b) => alpha * a + beta * b, scaled, bias) : scaled;
  }

  const each = (operation) => (inputs) => elementwise(operation, ...inputs);
  const OPERATORS = {
    Add: each((a, b) => a + b),
    Sub: each((a, b) => a - b),
    Mul: each((a, b) => a * b),
    Div: each((a, b) => a / b),
    Relu: each((a) => Math.max(a, 0)),
    Tanh: each(Math.tanh),
    Clip: each((a, low, high) => Math.min(Math.max(a, low), high)),
    Where: each((condition, a, b) => (condition ? a : b)),
    MatMul: ([rows, matrix]) => product(rows, matrix, false),
    Gemm: gemm,
    Reshape: reshape,
    Unsqueeze: unsqueeze,
    Concat: concat,
    Split: split,
    GatherND: gatherRows,
    Softmax: ([input], { axis = -1 }) => alongAxis(input, axis, softmax),
    ReduceMean: reduce((line) => sum(line) / line.length),
    ReduceSum: reduce(sum),
    ArgMax: ([input], { axis = 0, keepdims = 1 }) => {
      const found = alongAxis(input, axis, (line) => [line.indexOf(Math.max(...line))]);
      return keepdims ? found : without(found, [axisOf(axis, input.shape.length)]);
    },
  };

  function decode(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new Float32Array(bytes.buffer);
  }

  return class {
    /** @param graph what trainers/exporting/page.py writes of an ONNX graph */
    constructor(graph) {
      this.graph = graph;
      this.constants = Object.entries(graph.constants)
        .map(([name, { shape, data }]) => [name, tensor(shape, decode(data))]);
    }

    /** Actions as a flat array for flat arrays of observations, by name, of a number of rows. */
    act(observations, rows) {
      const values = new Map(this.constants);
      for (const { name, shape } of this.graph.inputs) {
        values.set(name, tensor([rows, ...shape], Float32Array.from(observations[name])));
      }
      for (const { operator, inputs, outputs, attributes } of this.graph.nodes) {
        const given = inputs.map((name) => values.get(name));
        const result = OPERATORS[operator](given, attributes);
        outputs.forEach((name, i) => values.set(name, outputs.length > 1 ? result[i] : result));
      }
      return values.get(this.graph.output).data;
    }
  };
})();
