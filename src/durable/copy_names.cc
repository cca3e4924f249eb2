#include "durable/copy_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace unreft::durable {
namespace {

constexpr std::string_view kSets[] = {"rank", "group"};
constexpr std::string_view kParameters = "model/";
constexpr std::string_view kBuffers = "buffer/";
constexpr std::string_view kMasters = "master/";

// A stored name, taken apart.
struct Parts {
  std::string set;                // "rank3", "group4"; empty: of all ranks
  uint64_t holder = 0;            // 3, 4
  std::vector<PathElement> path;  // empty: a name of no kind that is known
};

// The number after `word` at the begin of the name, up to a '/'; none if it has another form.
std::optional<std::pair<uint64_t, size_t>> NumberAfter(std::string_view name,
                                                       std::string_view word) {
  if (!name.starts_with(word)) return std::nullopt;
  const std::string_view rest = name.substr(word.size());
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc() || end == rest.data() + rest.size() || *end != '/') return std::nullopt;
  return std::pair(number, word.size() + static_cast<size_t>(end - rest.data()));
}

// "optim/...", or "optim1/..." of several optimizers.
std::optional<size_t> AfterOptimizer(std::string_view name) {
  constexpr std::string_view kOptimizer = "optim";
  if (name.starts_with("optim/")) return kOptimizer.size() + 1;
  const auto numbered = NumberAfter(name, kOptimizer);
  if (!numbered) return std::nullopt;
  return numbered->second + 1;
}

std::vector<PathElement> PathOf(std::string_view name) {
  using std::string;
  for (const std::string_view module : {kParameters, kBuffers}) {
    if (name.starts_with(module)) return {string("model"), string(name.substr(module.size()))};
  }
  const std::optional<size_t> state = AfterOptimizer(name);
  const size_t slash = name.rfind('/');
  if (!state || slash == std::string_view::npos || slash < *state) return {};
  return {string("optim"), string("state"), string(name.substr(*state, slash - *state)),
          string(name.substr(slash + 1))};
}

Parts PartsOf(std::string_view name) {
  Parts parts;
  for (const std::string_view word : kSets) {
    const auto number = NumberAfter(name, word);
    if (!number) continue;
    parts.holder = number->first;
    parts.set = std::string(name.substr(0, number->second));
    parts.path = PathOf(name.substr(number->second + 1));
    return parts;
  }
  parts.path = PathOf(name);
  return parts;
}

std::string KeyOf(const std::vector<PathElement>& path) {
  std::string key;
  for (const PathElement& element : path) {
    if (&element != &path.front()) key += '.';
    if (const auto* const text = std::get_if<std::string>(&element)) {
      key += *text;
    } else {
      key += fmt::format("{}", std::get<int64_t>(element));
    }
  }
  return key;
}

// Behind the set that the name begins with, if it does.
std::string_view WithoutSet(std::string_view name) {
  for (const std::string_view word : kSets) {
    if (const auto number = NumberAfter(name, word)) return name.substr(number->second + 1);
  }
  return name;
}

}  // namespace

ModelPart ModelPartOf(std::string_view stored) {
  const std::string_view name = WithoutSet(stored);
  if (name.starts_with(kParameters)) return ModelPart::kParameter;
  if (name.starts_with(kBuffers)) return ModelPart::kBuffer;
  return ModelPart::kNone;
}

std::optional<std::string> ParameterOf(std::string_view stored) {
  const std::string_view name = WithoutSet(stored);
  for (const std::string_view kind : {kParameters, kMasters}) {
    if (name.starts_with(kind)) return std::string(name.substr(kind.size()));
  }
  const std::optional<size_t> state = AfterOptimizer(name);
  const size_t slash = name.rfind('/');
  if (!state || slash == std::string_view::npos || slash < *state) return std::nullopt;
  return std::string(name.substr(*state, slash - *state));
}

absl::StatusOr<std::pair<std::string, std::string>> ParseKeyMapping(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return absl::InvalidArgumentError(fmt::format(
        "map: needed FROM=TO, the beginning of keys and what stands there instead, found '{}'",
        CleanText(text, 256)));
  }
  return std::pair(std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)));
}

void CopyNames::Add(std::string_view stored) {
  const Parts parts = PartsOf(stored);
  if (parts.path.empty()) return;
  std::pair holder(parts.holder, parts.set);
  const auto [found, is_new] = first_.try_emplace(KeyOf(parts.path), holder);
  if (!is_new) found->second = std::min(found->second, std::move(holder));
}

void CopyNames::Place(const std::string& name, const std::vector<PathElement>& path) {
  placed_[name] = KeyOf(path) == name ? path : std::vector<PathElement>{name};
}

CopyName CopyNames::Of(std::string_view stored) const {
  if (const auto placed = placed_.find(stored); placed != placed_.end()) return At(placed->second);
  Parts parts = PartsOf(stored);
  if (parts.path.empty()) return At({std::string(stored)});
  if (IsPlain(stored)) return At(std::move(parts.path));
  std::vector<PathElement> own = {std::string("unreft"), parts.set};
  own.insert(own.end(), parts.path.begin(), parts.path.end());
  return At(std::move(own));
}

bool CopyNames::IsPlain(std::string_view stored) const {
  const Parts parts = PartsOf(stored);
  if (parts.path.empty() || parts.set.empty()) return true;
  const auto first = first_.find(KeyOf(parts.path));
  return first != first_.end() && first->second == std::pair(parts.holder, parts.set);
}

CopyName CopyNames::At(std::vector<PathElement> path) const {
  std::string key = KeyOf(path);
  const std::pair<std::string, std::string>* longest = nullptr;
  for (const auto& mapping : map_) {
    if (!key.starts_with(mapping.first)) continue;
    if (longest == nullptr || mapping.first.size() > longest->first.size()) longest = &mapping;
  }
  if (longest == nullptr) return {std::move(key), std::move(path)};
  key = longest->second + key.substr(longest->first.size());
  return {key, {key}};
}

}  // namespace unreft::durable
