#include "durable/plain_reader.h"

#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "base/text.h"

namespace unreft::durable {
namespace {

constexpr int kDepthMax = 32;
constexpr std::string_view kMagic = "UNRFXTRA";
constexpr size_t kHeaderBytes = 16;
constexpr uint16_t kFormat = 5;

// Surrogates, which Python's str may have and UTF-8 may not, are of three bytes each.
bool IsText(std::string_view text) {
  while (!text.empty()) {
    size_t bytes = Utf8SequenceBytes(text);
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    if (bytes == 0 && text.size() >= 3 && byte(0) == 0xed && byte(1) >= 0xa0 && byte(1) < 0xc0 &&
        byte(2) >= 0x80 && byte(2) < 0xc0) {
      bytes = 3;
    }
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  absl::StatusOr<PlainValue> All() {
    absl::StatusOr<PlainValue> value = Value(0);
    if (value.ok() && at_ != bytes_.size()) {
      return Lost(fmt::format("{} bytes after the value, needed none", bytes_.size() - at_));
    }
    return value;
  }

 private:
  absl::Status Lost(std::string_view why) const {
    return absl::DataLossError(fmt::format("extras: at byte {}: {}", at_, why));
  }

  absl::StatusOr<std::string_view> Take(uint64_t bytes) {
    if (bytes > bytes_.size() - at_) {
      return Lost(fmt::format("needed {} bytes, found {}", bytes, bytes_.size() - at_));
    }
    const std::string_view taken = bytes_.substr(at_, bytes);
    at_ += bytes;
    return taken;
  }

  template <typename Number>
  absl::StatusOr<Number> TakeNumber() {
    const absl::StatusOr<std::string_view> bytes = Take(sizeof(Number));
    if (!bytes.ok()) return bytes.status();
    Number number;
    std::memcpy(&number, bytes->data(), sizeof(number));
    return number;
  }

  absl::StatusOr<std::string_view> Counted() {
    const absl::StatusOr<uint32_t> count = TakeNumber<uint32_t>();
    if (!count.ok()) return count.status();
    return Take(*count);
  }

  // Each value takes a byte at least.
  absl::StatusOr<uint32_t> CountOfValues(uint64_t bytes_each) {
    const absl::StatusOr<uint32_t> count = TakeNumber<uint32_t>();
    if (count.ok() && *count * bytes_each > bytes_.size() - at_) {
      return Lost(
          fmt::format("a count of {} values, with {} bytes left", *count, bytes_.size() - at_));
    }
    return count;
  }

  absl::StatusOr<PlainValue> Value(int depth) {
    const absl::StatusOr<std::string_view> tag = Take(1);
    if (!tag.ok()) return tag.status();
    switch (tag->front()) {
      case 'N':
        return PlainValue{PlainNone{}};
      case 'T':
        return PlainValue{true};
      case 'F':
        return PlainValue{false};
      case 'i':
        return Of(TakeNumber<int64_t>());
      case 'f':
        return Of(TakeNumber<double>());
      case 'I':
        return OfBytes([](std::string bytes) { return PlainBigInt{std::move(bytes)}; });
      case 's':
        return Text();
      case 'b':
        return OfBytes([](std::string bytes) { return PlainBytes{std::move(bytes), false}; });
      case 'B':
        return OfBytes([](std::string bytes) { return PlainBytes{std::move(bytes), true}; });
      default:
        return Container(tag->front(), depth + 1);
    }
  }

  template <typename Number>
  static absl::StatusOr<PlainValue> Of(const absl::StatusOr<Number>& number) {
    if (!number.ok()) return number.status();
    return PlainValue{*number};
  }

  template <typename Make>
  absl::StatusOr<PlainValue> OfBytes(Make make) {
    const absl::StatusOr<std::string_view> bytes = Counted();
    if (!bytes.ok()) return bytes.status();
    return PlainValue{make(std::string(*bytes))};
  }

  absl::StatusOr<PlainValue> Text() {
    const absl::StatusOr<std::string_view> text = Counted();
    if (!text.ok()) return text.status();
    if (!IsText(*text)) return Lost("a str that is no UTF-8");
    return PlainValue{std::string(*text)};
  }

  absl::StatusOr<PlainValue> Container(char tag, int depth) {
    if (depth > kDepthMax) {
      return Lost(fmt::format("containers more than {} deep", kDepthMax));
    }
    using Kind = PlainSequence::Kind;
    switch (tag) {
      case 'l':
        return Sequence(Kind::kList, depth);
      case 't':
        return Sequence(Kind::kTuple, depth);
      case 'e':
        return Sequence(Kind::kSet, depth);
      case 'z':
        return Sequence(Kind::kFrozenSet, depth);
      case 'd':
        return Dict(depth);
      case 'm':
        return Made(depth);
      default:
        return Lost(fmt::format("the tag {:#04x}, which is none", static_cast<uint8_t>(tag)));
    }
  }

  absl::StatusOr<PlainValue> Sequence(PlainSequence::Kind kind, int depth) {
    const absl::StatusOr<uint32_t> count = CountOfValues(1);
    if (!count.ok()) return count.status();
    PlainSequence sequence{kind, {}};
    absl::flat_hash_set<std::string_view> seen;
    const bool is_set =
        kind == PlainSequence::Kind::kSet || kind == PlainSequence::Kind::kFrozenSet;
    for (uint32_t i = 0; i < *count; ++i) {
      const size_t begin = at_;
      absl::StatusOr<PlainValue> item = Value(depth);
      if (!item.ok()) return item.status();
      if (is_set && !seen.insert(bytes_.substr(begin, at_ - begin)).second) {
        return Lost("an element of a set that is there twice");
      }
      sequence.items.push_back(*std::move(item));
    }
    return PlainValue{std::move(sequence)};
  }

  absl::StatusOr<PlainValue> Dict(int depth) {
    const absl::StatusOr<uint32_t> count = CountOfValues(2);
    if (!count.ok()) return count.status();
    PlainDict dict;
    absl::flat_hash_set<std::string_view> seen;
    for (uint32_t i = 0; i < *count; ++i) {
      const size_t begin = at_;
      absl::StatusOr<PlainValue> key = Value(depth);
      if (!key.ok()) return key.status();
      if (!seen.insert(bytes_.substr(begin, at_ - begin)).second) {
        return Lost("a key of a dict that is there twice");
      }
      absl::StatusOr<PlainValue> value = Value(depth);
      if (!value.ok()) return value.status();
      dict.items.push_back({*std::move(key), *std::move(value)});
    }
    return PlainValue{std::move(dict)};
  }

  // Three values: a tuple of the kind's name and its arguments; a list of items; a dict of pairs.
  absl::StatusOr<PlainValue> Made(int depth) {
    std::array<PlainValue, 3> parts;
    for (PlainValue& part : parts) {
      absl::StatusOr<PlainValue> value = Value(depth);
      if (!value.ok()) return value.status();
      part = *std::move(value);
    }
    auto* const made = std::get_if<PlainSequence>(&parts[0].value);
    auto* const items = std::get_if<PlainSequence>(&parts[1].value);
    auto* const pairs = std::get_if<PlainDict>(&parts[2].value);
    if (made == nullptr || items == nullptr || pairs == nullptr || made->items.empty() ||
        made->items.front().As<std::string>() == nullptr) {
      return Lost("what is no kind of value");
    }
    PlainOther other;
    other.kind = *made->items.front().As<std::string>();
    other.arguments.assign(std::make_move_iterator(made->items.begin() + 1),
                           std::make_move_iterator(made->items.end()));
    other.items = std::move(items->items);
    other.pairs = std::move(*pairs);
    if (other.kind == "tensor") return Tensor(std::move(other));
    return PlainValue{std::move(other)};
  }

  absl::StatusOr<PlainValue> Tensor(PlainOther made) const {
    if (made.arguments.size() != 3 || !made.items.empty() || !made.pairs.items.empty()) {
      return Lost("a tensor of other parts than dtype, sizes and bytes");
    }
    const auto* const dtype = made.arguments[0].As<std::string>();
    const auto* const sizes = made.arguments[1].As<PlainSequence>();
    const auto* const bytes = made.arguments[2].As<PlainBytes>();
    if (dtype == nullptr || sizes == nullptr || sizes->kind != PlainSequence::Kind::kTuple ||
        bytes == nullptr || bytes->is_mutable) {
      return Lost("a tensor without dtype, sizes and bytes");
    }
    const std::optional<Dtype> known = DtypeNamed(*dtype);
    if (!known) return PlainValue{std::move(made)};
    PlainTensor tensor{*known, {}, bytes->bytes};
    uint64_t needed = DtypeBytes(*known);
    uint64_t product = needed;  // as if a size of 0 were 1: what strides are computed from
    for (const PlainValue& size : sizes->items) {
      const int64_t* const extent = size.As<int64_t>();
      if (extent == nullptr || *extent < 0) return Lost("a tensor whose sizes are no sizes");
      const auto length = static_cast<uint64_t>(*extent);
      if (__builtin_mul_overflow(product, std::max<uint64_t>(length, 1), &product)) {
        return Lost("a tensor whose sizes are no sizes");
      }
      needed *= length;
      tensor.sizes.push_back(length);
    }
    if (needed != tensor.bytes.size()) {
      return Lost(fmt::format("a tensor of {} bytes, needed {}", tensor.bytes.size(), needed));
    }
    return PlainValue{std::move(tensor)};
  }

  const std::string_view bytes_;
  size_t at_ = 0;
};

}  // namespace

std::optional<Dtype> DtypeNamed(std::string_view name) {
  for (int number = 1; DtypeBytes(static_cast<Dtype>(number)) != 0; ++number) {
    if (DtypeName(static_cast<Dtype>(number)) == name) return static_cast<Dtype>(number);
  }
  return std::nullopt;
}

const PlainValue* PlainDict::Find(const std::string& key) const {
  for (const auto& [name, value] : items) {
    const std::string* const text = name.As<std::string>();
    if (text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

absl::StatusOr<PlainValue> ReadPlain(std::string_view bytes) { return Reader(bytes).All(); }

absl::StatusOr<PlainDict> ReadTorchExtras(std::string_view extras) {
  if (!extras.starts_with(kMagic)) {
    return absl::NotFoundError("extras: they are not of unreft.torch");
  }
  if (extras.size() < kHeaderBytes) {
    return absl::DataLossError(fmt::format("extras: needed a header of {} bytes, found {} bytes",
                                           kHeaderBytes, extras.size()));
  }
  uint16_t format = 0;
  uint16_t min_reader = 0;
  std::memcpy(&format, extras.data() + 8, sizeof(format));
  std::memcpy(&min_reader, extras.data() + 10, sizeof(min_reader));
  if (min_reader > kFormat) {
    return absl::FailedPreconditionError(
        fmt::format("extras have format {}, for readers of format {}: this release reads format {}",
                    format, min_reader, kFormat));
  }
  absl::StatusOr<PlainValue> record = ReadPlain(extras.substr(kHeaderBytes));
  if (!record.ok()) return record.status();
  PlainDict* const dict = std::get_if<PlainDict>(&record->value);
  if (dict == nullptr) return absl::DataLossError("extras: what is stored is no record");
  return std::move(*dict);
}

}  // namespace unreft::durable
