#include "durable/pickle_writer.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "base/check.h"

namespace unreft::durable {
namespace {

// The opcodes, by their names in Python's pickletools.
enum class Op : char {
  kProto = '\x80',
  kStop = '.',
  kNone = 'N',
  kNewTrue = '\x88',
  kNewFalse = '\x89',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = '\x8a',
  kBinFloat = 'G',
  kBinUnicode = 'X',
  kGlobal = 'c',
  kMark = '(',
  kTuple = 't',
  kEmptyList = ']',
  kAppends = 'e',
  kEmptyDict = '}',
  kSetItems = 'u',
  kReduce = 'R',
  kNewObj = '\x81',
  kBuild = 'b',
  kBinPersId = 'Q',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kBinGet = 'h',
  kLongBinGet = 'j',
};

void Append(std::string& out, Op op) { out.push_back(static_cast<char>(op)); }

// The lowest `bytes` bytes of it, little-endian.
void AppendNumber(std::string& out, uint64_t number, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>(number >> (8 * i)));
}

// An opcode whose argument has one byte if it fits, and four otherwise.
void AppendPlace(std::string& out, Op of_one, Op of_four, uint32_t place) {
  const bool fits = place <= UINT8_MAX;
  Append(out, fits ? of_one : of_four);
  AppendNumber(out, place, fits ? 1 : 4);
}

// The fewest bytes that have the number and its sign.
size_t SignedBytes(int64_t value) {
  size_t bytes = 8;
  while (bytes > 1 && value >> (8 * (bytes - 1) - 1) == (value < 0 ? -1 : 0)) --bytes;
  return bytes;
}

// The characters of code points 0 to 255, each of which is one of the bytes.
std::string Latin1AsUtf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() + bytes.size() / 2);
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x80) {
      text.push_back(c);
    } else {
      text.push_back(static_cast<char>(0xc0 | byte >> 6));
      text.push_back(static_cast<char>(0x80 | (byte & 0x3f)));
    }
  }
  return text;
}

}  // namespace

PickleWriter::PickleWriter() {
  Append(out_, Op::kProto);
  AppendNumber(out_, 2, 1);
}

void PickleWriter::None() { Append(out_, Op::kNone); }

void PickleWriter::Bool(bool value) { Append(out_, value ? Op::kNewTrue : Op::kNewFalse); }

void PickleWriter::Int(int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  if (std::in_range<uint8_t>(value)) {
    Append(out_, Op::kBinInt1);
    AppendNumber(out_, bits, 1);
  } else if (std::in_range<uint16_t>(value)) {
    Append(out_, Op::kBinInt2);
    AppendNumber(out_, bits, 2);
  } else if (std::in_range<int32_t>(value)) {
    Append(out_, Op::kBinInt);
    AppendNumber(out_, bits, 4);
  } else {
    const size_t bytes = SignedBytes(value);
    Append(out_, Op::kLong1);
    AppendNumber(out_, bytes, 1);
    AppendNumber(out_, bits, bytes);
  }
}

void PickleWriter::Uint(uint64_t value) {
  if (std::in_range<int64_t>(value)) return Int(static_cast<int64_t>(value));
  Append(out_, Op::kLong1);
  AppendNumber(out_, 9, 1);
  AppendNumber(out_, value, 8);
  AppendNumber(out_, 0, 1);
}

void PickleWriter::BigInt(std::string_view bytes) {
  UNREFT_CHECK(bytes.size() <= kBigIntBytesMax, "an int of {} bytes", bytes.size());
  Append(out_, Op::kLong1);
  AppendNumber(out_, bytes.size(), 1);
  out_.append(bytes);
}

void PickleWriter::Float(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  Append(out_, Op::kBinFloat);
  for (int shift = 56; shift >= 0; shift -= 8) out_.push_back(static_cast<char>(bits >> shift));
}

void PickleWriter::String(std::string_view text) {
  UNREFT_CHECK(text.size() <= kStringBytesMax, "a str of {} bytes", text.size());
  Append(out_, Op::kBinUnicode);
  AppendNumber(out_, text.size(), 4);
  out_.append(text);
}

void PickleWriter::SharedString(std::string_view text) {
  if (Recall(strings_, text)) return;
  String(text);
  Remember(strings_, text);
}

// Protocol 2 has no opcode for them. It is how Python itself writes bytes by this protocol.
void PickleWriter::Bytes(std::string_view bytes, bool is_mutable) {
  UNREFT_CHECK(bytes.size() <= kStringBytesMax / 2, "{} bytes", bytes.size());
  if (is_mutable) {
    Global("__builtin__", "bytearray");
  } else {
    Global("_codecs", "encode");
  }
  BeginTuple();
  String(Latin1AsUtf8(bytes));
  SharedString("latin1");
  EndTuple();
  Reduce();
}

void PickleWriter::Global(std::string_view module, std::string_view name) {
  const std::string lines = fmt::format("{}\n{}\n", module, name);
  if (Recall(globals_, lines)) return;
  Append(out_, Op::kGlobal);
  out_.append(lines);
  Remember(globals_, lines);
}

void PickleWriter::BeginTuple() { Append(out_, Op::kMark); }

void PickleWriter::EndTuple() { Append(out_, Op::kTuple); }

void PickleWriter::BeginList() {
  Append(out_, Op::kEmptyList);
  Append(out_, Op::kMark);
}

void PickleWriter::EndList() { Append(out_, Op::kAppends); }

void PickleWriter::BeginDict() {
  Append(out_, Op::kEmptyDict);
  BeginPairs();
}

void PickleWriter::EndDict() { EndPairs(); }

void PickleWriter::BeginPairs() { Append(out_, Op::kMark); }

void PickleWriter::EndPairs() { Append(out_, Op::kSetItems); }

void PickleWriter::Reduce() { Append(out_, Op::kReduce); }

void PickleWriter::NewObject() { Append(out_, Op::kNewObj); }

void PickleWriter::Build() { Append(out_, Op::kBuild); }

void PickleWriter::PersistentId() { Append(out_, Op::kBinPersId); }

std::string PickleWriter::Finish() && {
  Append(out_, Op::kStop);
  return std::move(out_);
}

bool PickleWriter::Recall(const Memo& memo, std::string_view text) {
  const auto found = memo.find(text);
  if (found == memo.end()) return false;
  AppendPlace(out_, Op::kBinGet, Op::kLongBinGet, found->second);
  return true;
}

void PickleWriter::Remember(Memo& memo, std::string_view text) {
  AppendPlace(out_, Op::kBinPut, Op::kLongBinPut, remembered_);
  memo.emplace(text, remembered_++);
}

}  // namespace unreft::durable
