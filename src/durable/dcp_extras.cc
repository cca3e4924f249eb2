#include "durable/dcp_extras.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace unreft::durable {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMagic = "UNRFTDCP";
constexpr size_t kHeaderAt = 16;
constexpr uint64_t kFormat = 1;

template <typename... Args>
absl::Status Wrong(fmt::format_string<Args...> format, Args&&... args) {
  return absl::DataLossError("extras: " + fmt::format(format, std::forward<Args>(args)...));
}

std::string Quoted(std::string_view name) { return fmt::format("'{}'", CleanText(name, 256)); }

// Of an object; null where it lacks.
const Json* PartOf(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

std::optional<PathElement> ElementOf(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  if (!json.is_number_integer()) return std::nullopt;
  const bool fits = !json.is_number_unsigned() ||
                    json.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
  return fits ? std::optional<PathElement>(json.get<int64_t>()) : std::nullopt;
}

absl::StatusOr<DcpSavedEntry> EntryOf(const std::string& name, const Json& json) {
  if (!json.is_object()) return Wrong("needed an object of entry {}", Quoted(name));
  DcpSavedEntry entry;
  if (const Json* const path = PartOf(json, "path")) {
    if (!path->is_array()) return Wrong("needed a list as path of entry {}", Quoted(name));
    for (const Json& part : *path) {
      std::optional<PathElement> element = ElementOf(part);
      if (!element) return Wrong("needed keys and indices as path of entry {}", Quoted(name));
      entry.path.push_back(*std::move(element));
    }
  }
  if (const Json* const rank = PartOf(json, "value_of")) {
    if (!rank->is_number_unsigned()) return Wrong("needed a rank of entry {}", Quoted(name));
    entry.value_of = Rank{rank->get<uint64_t>()};
  }
  if (const Json* const empty = PartOf(json, "empty")) {
    const bool is_pair = empty->is_array() && empty->size() == 2 && (*empty)[0].is_string() &&
                         (*empty)[1].is_array();
    if (!is_pair) return Wrong("needed type and shape of entry {}", Quoted(name));
    std::vector<uint64_t> shape;
    bool is_empty = false;
    for (const Json& extent : (*empty)[1]) {
      if (!extent.is_number_unsigned()) return Wrong("needed a shape of entry {}", Quoted(name));
      shape.push_back(extent.get<uint64_t>());
      is_empty |= shape.back() == 0;
    }
    if (!is_empty) return Wrong("needed no elements of entry {}, found some", Quoted(name));
    entry.empty.emplace((*empty)[0].get<std::string>(), std::move(shape));
  }
  return entry;
}

absl::Status ReadValues(const Json& list, size_t at, size_t end, DcpExtras& extras) {
  for (const Json& value : list) {
    const bool is_pair = value.is_array() && value.size() == 2 && value[0].is_string() &&
                         value[1].is_number_unsigned();
    if (!is_pair) return Wrong("needed the name and the bytes of each value");
    const auto name = value[0].get<std::string>();
    const auto bytes = value[1].get<uint64_t>();
    if (bytes > end - at) {
      return Wrong("needed {} bytes of value {}, found {}", bytes, Quoted(name), end - at);
    }
    if (!extras.values.try_emplace(name, at, bytes).second) {
      return Wrong("value {} is there twice", Quoted(name));
    }
    at += bytes;
  }
  if (at != end) return Wrong("needed no bytes after the values, found {}", end - at);
  return absl::OkStatus();
}

}  // namespace

bool AreDcpExtras(std::string_view extras) { return extras.starts_with(kMagic); }

absl::StatusOr<DcpExtras> ReadDcpExtras(std::string_view extras) {
  if (extras.size() < kHeaderAt) {
    return Wrong("needed {} bytes before their header, found {}", kHeaderAt, extras.size());
  }
  uint64_t header_bytes = 0;
  for (size_t i = kHeaderAt; i-- > kMagic.size();) {
    header_bytes = header_bytes << 8 | static_cast<uint8_t>(extras[i]);
  }
  if (header_bytes > extras.size() - kHeaderAt) {
    return Wrong("needed a header of {} bytes, found {}", header_bytes, extras.size() - kHeaderAt);
  }
  const std::string_view text = extras.substr(kHeaderAt, header_bytes);
  const Json header = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return Wrong("needed a header in JSON, found none");
  const Json* const format = PartOf(header, "format");
  if (format == nullptr || *format != kFormat) {
    return Wrong("needed format {}, found {}", kFormat,
                 format == nullptr ? "none" : CleanText(format->dump(), 64));
  }
  const Json* const values = PartOf(header, "values");
  if (values == nullptr || !values->is_array()) return Wrong("needed a list of values, found none");
  DcpExtras found;
  absl::Status status = ReadValues(*values, kHeaderAt + header_bytes, extras.size(), found);
  if (!status.ok()) return status;
  const Json* const catalogue = PartOf(header, "catalogue");
  if (catalogue == nullptr) return found;
  if (!catalogue->is_object()) return Wrong("needed entries by name as catalogue");
  for (const auto& [name, json] : catalogue->items()) {
    absl::StatusOr<DcpSavedEntry> entry = EntryOf(name, json);
    if (!entry.ok()) return entry.status();
    found.catalogue.emplace(name, *std::move(entry));
  }
  return found;
}

}  // namespace unreft::durable
