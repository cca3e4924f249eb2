#include "durable/safetensors.h"

#include <absl/status/status.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.h"

namespace unreft::durable {
namespace {

constexpr std::string_view kMetadata = "__metadata__";
constexpr uint64_t kDataAlignment = 8;

// A string of JSON; `text` is UTF-8.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') {
      quoted += '\\';
      quoted += letter;
    } else if (static_cast<unsigned char>(letter) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(letter));
    } else {
      quoted += letter;
    }
  }
  return quoted + '"';
}

std::string Numbers(const std::vector<uint64_t>& numbers) {
  return fmt::format("[{}]", fmt::join(numbers, ","));
}

uint64_t DataBytes(const SafetensorsEntry& entry) {
  uint64_t bytes = DtypeBytes(entry.dtype);
  for (const uint64_t extent : entry.extent) bytes *= extent;
  return bytes;
}

absl::Status Refused(const SafetensorsEntry& entry, std::string_view why) {
  return absl::InvalidArgumentError(
      fmt::format("tensor '{}': {}", CleanText(entry.key, kTextBytesMax), why));
}

}  // namespace

std::string_view SafetensorsDtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool:
      return "BOOL";
    case Dtype::kUint8:
      return "U8";
    case Dtype::kInt8:
      return "I8";
    case Dtype::kInt16:
      return "I16";
    case Dtype::kInt32:
      return "I32";
    case Dtype::kInt64:
      return "I64";
    case Dtype::kFloat16:
      return "F16";
    case Dtype::kBfloat16:
      return "BF16";
    case Dtype::kFloat32:
      return "F32";
    case Dtype::kFloat64:
      return "F64";
    case Dtype::kFloat8E4m3:
      return "F8_E4M3";
    case Dtype::kFloat8E5m2:
      return "F8_E5M2";
    case Dtype::kComplex64:
      return "C64";
    case Dtype::kUint16:
      return "U16";
    case Dtype::kUint32:
      return "U32";
    case Dtype::kUint64:
      return "U64";
    case Dtype::kComplex128:
      return {};
  }
  return {};
}

absl::StatusOr<std::string> SafetensorsHeader(std::span<const SafetensorsEntry> entries) {
  std::string offsets;
  std::string tensors;
  uint64_t at = 0;
  for (const SafetensorsEntry& entry : entries) {
    const std::string_view dtype = SafetensorsDtype(entry.dtype);
    if (dtype.empty()) {
      return Refused(entry, fmt::format("it is of {}, which safetensors does not have",
                                        DtypeName(entry.dtype)));
    }
    if (entry.key == kMetadata) return Refused(entry, "safetensors keeps that key for itself");
    const std::string key = Quoted(entry.key);
    const uint64_t end = at + DataBytes(entry);
    if (!offsets.empty()) offsets += ',';
    offsets += fmt::format(R"({}:{{"saved_offsets":{}}})", key, Numbers(entry.offset));
    tensors += fmt::format(R"(,{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", key, dtype,
                           Numbers(entry.extent), at, end);
    at = end;
  }
  // Every value of the metadata is a string, so what is in it is JSON within JSON.
  std::string json =
      fmt::format(R"({{"{}":{{"DCP_SHARDING_INFO":{},"DCP_VERSION":"1.0","format":"pt"}}{}}})",
                  kMetadata, Quoted('{' + offsets + '}'), tensors);
  json.append((kDataAlignment - json.size() % kDataAlignment) % kDataAlignment, ' ');
  if (json.size() > kSafetensorsJsonBytesMax) {
    return absl::InvalidArgumentError(fmt::format(
        "safetensors: {} tensors of one file need {} bytes of JSON, at most {} are read",
        entries.size(), json.size(), kSafetensorsJsonBytesMax));
  }
  std::string header;
  for (size_t byte = 0; byte < sizeof(uint64_t); ++byte) {
    header += static_cast<char>(json.size() >> (8 * byte));
  }
  return header + json;
}

std::string SafetensorsIndex(const std::map<std::string, std::string>& files, uint64_t data_bytes) {
  std::string lines;
  for (const auto& [key, file] : files) {
    if (!lines.empty()) lines += ",";
    lines += fmt::format("\n    {}: {}", Quoted(key), Quoted(file));
  }
  return fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{{}\n  }}\n}}\n",
      data_bytes, lines);
}

}  // namespace unreft::durable
