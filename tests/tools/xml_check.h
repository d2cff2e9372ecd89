// SPDX-License-Identifier: Apache-2.0
// Is a text well-formed XML? Enough for what the SVG writer makes: one root, elements nested,
// attributes quoted and unique, entities known, no character that XML forbids.
//
// Thread safety: pure function.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace qrd::testing {

class XmlChecker {
 public:
  explicit XmlChecker(const std::string& text) : text_(text) {}

  // "" or what is wrong and where.
  std::string Check() {
    bool root_seen = false;
    while (at_ < text_.size() && error_.empty()) {
      if (text_[at_] == '<') {
        if (open_.empty() && root_seen && text_.compare(at_, 2, "</") != 0) Fail("a second root");
        root_seen = true;
        Tag();
      } else {
        Character(open_.empty());
      }
    }
    if (error_.empty() && !open_.empty()) Fail("<" + open_.back() + "> is not closed");
    if (error_.empty() && !root_seen) Fail("no element");
    return error_;
  }

 private:
  void Fail(const std::string& what) {
    if (error_.empty()) error_ = what + " at byte " + std::to_string(at_);
  }

  void Character(bool outside) {
    const auto c = static_cast<unsigned char>(text_[at_]);
    const bool blank = c == '\n' || c == ' ' || c == '\t' || c == '\r';
    if (c == '&') {
      bool known = false;
      for (const char* entity : {"&lt;", "&gt;", "&amp;", "&quot;", "&apos;"}) {
        known |= text_.compare(at_, std::string(entity).size(), entity) == 0;
      }
      if (!known) Fail("an unknown entity");
    }
    if (c == '>' || (c < 0x20 && !blank)) Fail("a character that must not be there");
    if (outside && !blank) Fail("text outside the root");
    ++at_;
  }

  std::string Name() {
    std::string name;
    while (at_ < text_.size() && (isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                  text_[at_] == '-' || text_[at_] == ':')) {
      name.push_back(text_[at_++]);
    }
    if (name.empty()) Fail("a name is missing");
    return name;
  }

  void Tag() {
    ++at_;
    if (text_[at_] == '/') {
      ++at_;
      const std::string name = Name();
      if (open_.empty() || open_.back() != name) return Fail("</" + name + "> closes nothing");
      open_.pop_back();
      if (text_[at_++] != '>') Fail("'>' is missing");
      return;
    }
    const std::string name = Name();
    std::set<std::string> attributes;
    while (error_.empty() && at_ < text_.size()) {
      const bool space = text_[at_] == ' ' || text_[at_] == '\n';
      while (text_[at_] == ' ' || text_[at_] == '\n') ++at_;
      if (text_.compare(at_, 2, "/>") == 0) {
        at_ += 2;
        return;
      }
      if (text_[at_] == '>') {
        ++at_;
        open_.push_back(name);
        return;
      }
      if (!space) return Fail("a blank before an attribute is missing");
      const std::string attribute = Name();
      if (!attributes.insert(attribute).second) return Fail(attribute + " is there twice");
      if (text_.compare(at_, 2, "=\"") != 0) return Fail("=\" is missing");
      for (at_ += 2; at_ < text_.size() && text_[at_] != '"' && error_.empty();) {
        if (text_[at_] == '<') return Fail("'<' in an attribute");
        Character(false);
      }
      ++at_;
    }
    Fail("a tag does not end");
  }

  const std::string& text_;
  size_t at_ = 0;
  std::vector<std::string> open_;
  std::string error_;
};

}  // namespace qrd::testing
