// Lifetime: lets callbacks of an object outlive it harmlessly.
//
// A member of a class that lives on an executor; declared last, so that it dies first. Bind may be
// called on any thread while the object lives; what it returns runs in turns of the executor, and
// the object is destroyed in such a turn, or when no turn runs any more.
#pragma once

#include <memory>
#include <utility>

namespace unreft {

class Lifetime {
 public:
  // A callable that does what `function` does while the object lives, and then nothing.
  template <typename Function>
  auto Bind(Function function) const {
    return [alive = token(), function = std::move(function)](auto&&... arguments) mutable {
      if (!alive.expired()) function(std::forward<decltype(arguments)>(arguments)...);
    };
  }

  // Expired once the object is gone: for callbacks that answer all the same, or may end it.
  std::weak_ptr<const char> token() const { return token_; }

 private:
  // Shared only with the weak pointers of what was bound.
  std::shared_ptr<const char> token_ = std::make_shared<const char>('\0');
};

}  // namespace unreft
