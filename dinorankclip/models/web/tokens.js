// Turns captions into the ids of text.onnx. The same ids as dinorankclip's own tokenizers give, with one exception: text
// that was decoded wrongly before ("cafÃ©") is not mended here.

const LIGATURES = {
  "Ĳ": "IJ", "ĳ": "ij", "ŉ": "ʼn", "Ǳ": "DZ", "ǲ": "Dz", "ǳ": "dz", "Ǆ": "DŽ", "ǅ": "Dž", "ǆ": "dž", "Ǉ": "LJ", "ǈ": "Lj",
  "ǉ": "lj", "Ǌ": "NJ", "ǋ": "Nj", "ǌ": "nj", "ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "ſt", "ﬆ": "st",
};
const READ = 16384; // characters of a caption

// Numbers that HTML reads as Windows-1252.
const C1 = "€\u0081‚ƒ„…†‡ˆ‰Š‹Œ\u008dŽ\u008f\u0090‘’“”•–—˜™š›œ\u009džŸ";

function unescaped(text, entities) {
  return text.replace(/&(#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[^\t\n\f <&#;]{1,32};?)/g, (whole, name) => {
    if (name[0] === "#") {
      const digits = name.slice(1).replace(";", "");
      const code = /^[xX]/.test(digits) ? parseInt(digits.slice(1), 16) : parseInt(digits, 10);
      if (code >= 0x80 && code <= 0x9f) return C1[code - 0x80];
      if (code === 0 || (code >= 0xd800 && code <= 0xdfff) || code > 0x10ffff) return "\ufffd";
      const last = code & 0xffff;
      if (code < 9 || code === 11 || (code > 13 && code < 32) || code === 127 || (code >= 0xfdd0 && code <= 0xfdef)) return "";
      if (last === 0xfffe || last === 0xffff) return "";
      return String.fromCodePoint(code);
    }
    if (Object.hasOwn(entities, name)) return entities[name];
    for (let end = name.length - 1; end > 1; end--) {
      const start = name.slice(0, end);
      if (Object.hasOwn(entities, start)) return entities[start] + name.slice(end);
    }
    return whole;
  });
}

// Mends what can be mended, resolves HTML entities, joins white space, lowers the case.
export function cleaned(caption, entities) {
  let text = caption.slice(0, READ);
  if (!/^[\x20-\x7e]*$/.test(text) || text.includes("&")) {
    if (!text.includes("<")) text = unescaped(text, entities);
    text = text.replace(/[\u0100-\uffff]/g, (sign) => LIGATURES[sign] ?? sign);
    text = text.replace(/[\u3000\uff01-\uffef]/g, (sign) => sign.normalize("NFKC"));
    text = text.replace(/[\u02bc\u2018-\u201b]/g, "'").replace(/[\u201c-\u201f]/g, '"');
    text = text.replace(/\r\n|[\r\u2028\u2029\u0085]/g, "\n");
    text = text.replace(/[\x00-\x08\x0b\x0e-\x1f\x7f\u206a-\u206f\ufeff\ufff9-\ufffc]/g, "").normalize("NFC");
  }
  text = unescaped(unescaped(text, entities), entities);
  return text.split(/[\s\x1c-\x1f\x85]+/).filter((word) => word).join(" ").toLowerCase();
}

function padded(ids, most, padding) {
  const row = new BigInt64Array(most).fill(BigInt(padding));
  ids.forEach((id, place) => { row[place] = BigInt(id); });
  return row;
}

// CLIP's byte pairs.
export class BytePairs {
  constructor(data, contextLength) {
    this.entities = data.entities;
    this.contextLength = contextLength;
    const { names: signs, of } = byteLetters();
    this.letters = of;
    this.order = new Map(data.merges.map((pair, place) => [pair, place]));
    const names = [...signs, ...signs.map((sign) => sign + "</w>"), ...data.merges.map((pair) => pair.replace(" ", ""))];
    this.ids = new Map(names.map((name, place) => [name, place]));
    this.start = names.length;
    this.end = names.length + 1;
    this.known = new Map();
  }

  encode(caption) {
    const ids = [];
    const words = cleaned(caption, this.entities).match(/<start_of_text>|<end_of_text>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+/giu) ?? [];
    for (const word of words) {
      if (word === "<start_of_text>") ids.push(this.start);
      else if (word === "<end_of_text>") ids.push(this.end);
      else ids.push(...this.pieces(word));
      if (ids.length >= this.contextLength - 2) break;
    }
    return [this.start, ...ids.slice(0, this.contextLength - 2), this.end];
  }

  row(caption) {
    return padded(this.encode(caption), this.contextLength, 0);
  }

  pieces(word) {
    if (!this.known.has(word)) {
      let parts = [...new TextEncoder().encode(word)].map((byte) => this.letters[byte]);
      parts[parts.length - 1] += "</w>";
      for (;;) {
        let best = Infinity;
        for (let place = 0; place + 1 < parts.length; place++) {
          best = Math.min(best, this.order.get(parts[place] + " " + parts[place + 1]) ?? Infinity);
        }
        if (best === Infinity) break;
        const joined = [];
        for (let place = 0; place < parts.length; place++) {
          if (place + 1 < parts.length && this.order.get(parts[place] + " " + parts[place + 1]) === best) {
            joined.push(parts[place] + parts[place + 1]);
            place += 1;
          } else joined.push(parts[place]);
        }
        parts = joined;
      }
      this.known.set(word, parts.map((piece) => this.ids.get(piece)));
    }
    return this.known.get(word);
  }
}

// Visible characters for bytes: `names` in the order of the vocabulary's ids, `of` by byte.
function byteLetters() {
  const visible = [];
  for (const [first, last] of [[33, 126], [161, 172], [174, 255]]) for (let byte = first; byte <= last; byte++) visible.push(byte);
  const bytes = [...visible, ...Array.from({ length: 256 }, (_, byte) => byte).filter((byte) => !visible.includes(byte))];
  const names = bytes.map((byte, place) => String.fromCharCode(place < visible.length ? byte : 256 + place - visible.length));
  const of = [];
  bytes.forEach((byte, place) => { of[byte] = names[place]; });
  return { names, of };
}

// BERT's word pieces.
export class WordPieces {
  constructor(data, contextLength) {
    Object.assign(this, { entities: data.entities, contextLength, lower: data.lower, accents: data.accents, longest: data.longest });
    this.ids = new Map(data.pieces.map((piece, place) => [piece, place]));
    [this.start, this.end, this.unknown] = ["[CLS]", "[SEP]", "[UNK]"].map((name) => this.ids.get(name));
  }

  encode(caption) {
    let text = cleaned(caption, this.entities);
    text = text.replace(/[\0\ufffd]|(?![\t\n\r])\p{C}/gu, "").replace(/[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/gu, " $& ");
    if (!this.accents) text = text.normalize("NFD").replace(/\p{Mn}/gu, "");
    if (this.lower) text = text.toLowerCase();
    const words = text.match(/[!-/:-@[-`{-~]|\p{P}|(?:(?![!-/:-@[-`{-~]|\p{P})\S)+/gu) ?? [];
    const ids = [this.start, ...words.flatMap((word) => this.pieces([...word]))];
    return [...ids.slice(0, this.contextLength - 1), this.end];
  }

  row(caption) {
    return padded(this.encode(caption), this.contextLength, 0);
  }

  pieces(signs) {
    if (signs.length > this.longest) return [this.unknown];
    const ids = [];
    for (let start = 0; start < signs.length;) {
      let end = signs.length;
      let id;
      for (; end > start; end--) {
        id = this.ids.get((start ? "##" : "") + signs.slice(start, end).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) return [this.unknown];
      ids.push(id);
      start = end;
    }
    return ids;
  }
}

export function tokenizer(data, contextLength) {
  return new (data.kind === "word pieces" ? WordPieces : BytePairs)(data, contextLength);
}
